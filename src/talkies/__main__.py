from talkies.cli import main

main()
