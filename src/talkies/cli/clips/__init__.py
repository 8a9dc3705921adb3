"""``talkies generate``: what was asked on a command line or in a file of prompts -> clips on disk."""
