"""The words of the second edition's prompts: for every attribute value, what people call it.

A word that is listed twice is drawn twice as often. Spellings are British and American. A loose word belongs to several
values: whoever writes it leaves open which.
"""

from __future__ import annotations

COLORS = {
    "red": ("red",) * 6 + ("bright red", "crimson", "scarlet", "ruby"),
    "green": ("green",) * 6 + ("bright green", "emerald", "grass-green"),
    "blue": ("blue",) * 6 + ("deep blue", "navy", "royal blue", "cobalt"),
    "yellow": ("yellow",) * 6 + ("bright yellow", "lemon", "sunny yellow"),
    "orange": ("orange",) * 6 + ("bright orange", "tangerine"),
    "purple": ("purple",) * 5 + ("violet", "violet", "plum"),
    "cyan": ("cyan",) * 4 + ("turquoise", "turquoise", "aqua", "aqua-blue"),
    "pink": ("pink",) * 6 + ("hot pink", "rose", "rosy"),
}
LOOSE_COLORS = {
    "lilac": ("purple", "pink"),
    "magenta": ("purple", "pink"),
    "golden": ("yellow", "orange"),
    "amber": ("yellow", "orange"),
    "teal": ("green", "cyan"),
    "azure": ("blue", "cyan"),
    "indigo": ("blue", "purple"),
}
LOOSE_SHARE = 0.04
SHAPES = {
    "ball": ("ball",) * 5 + ("circle", "circle", "sphere", "disc", "disk", "orb"),
    "square": ("square",) * 5 + ("box", "box", "block", "cube"),
    "triangle": ("triangle",),
}
ANY_SHAPE = ("object", "object", "thing", "shape", "figure")
SIZES = {
    "small": ("small",) * 4 + ("little", "little", "tiny", "mini"),
    "medium": ("medium-sized", "medium", "mid-sized", "normal-sized", "average-sized", "average-size"),
    "big": ("big", "big", "big", "large", "large", "huge", "giant", "enormous", "massive"),
}
SIDES = {"left": "left", "right": "right"}
PLACES = {
    side: (
        f"on the {side}", f"on the {side}", f"at the {side}", f"on the {side} side", f"on the {side}-hand side",
        f"at the {side} edge", f"near the {side} edge", f"in the {side} part of the picture", f"over on the {side}",
        f"on the {side} of the screen",
    )
    for side in SIDES
} | {
    "middle": (
        "in the middle", "in the middle", "in the center", "in the centre", "at the center", "at the centre",
        "in the middle of the frame", "in the middle of the picture", "in the center of the screen",
        "right in the middle",
    ),
}  # fmt: skip
SURFACES = {
    "dark": ("dark", "dark", "dark", "black", "black", "pitch-black", "dim", "nearly black"),
    "light": ("light", "light", "light", "white", "white", "bright", "pale", "off-white"),
}
BACKDROPS = ("background", "background", "background", "backdrop")
ROOMS = {
    "dark": ("in the dark", "in a dark room", "in darkness", "in a black void", "at night"),
    "light": ("in a bright room", "in a white room", "in a brightly lit space", "in broad daylight"),
}
SCENE_SENTENCES = {
    "dark": ("it is dark all around", "everything behind is black", "the scene is dark", "the room is dark"),
    "light": ("it is bright all around", "everything behind is white", "the scene is bright", "the room is white"),
}
# (finite, participle, base) of what an object does
VERBS = {
    "bounce": (
        ("bounces", "bouncing", "bounce"), ("bounces", "bouncing", "bounce"), ("bounces", "bouncing", "bounce"),
        ("bounces up and down", "bouncing up and down", "bounce up and down"), ("hops", "hopping", "hop"),
        ("jumps up and down", "jumping up and down", "jump up and down"), ("jumps", "jumping", "jump"),
        ("hops up and down", "hopping up and down", "hop up and down"),
        ("bounces on the floor", "bouncing on the floor", "bounce on the floor"),
        ("goes up and down", "going up and down", "go up and down"),
        ("springs up and down", "springing up and down", "spring up and down"),
        ("keeps bouncing", "bouncing on and on", "keep bouncing"),
        ("falls and bounces back", "falling and bouncing back", "fall and bounce back"),
        ("jumps in place", "jumping in place", "jump in place"),
        ("hops on the spot", "hopping on the spot", "hop on the spot"),
    ),
    "flash": (
        ("flashes", "flashing", "flash"), ("flashes", "flashing", "flash"), ("blinks", "blinking", "blink"),
        ("blinks", "blinking", "blink"), ("flashes on and off", "flashing on and off", "flash on and off"),
        ("flickers", "flickering", "flicker"),
        ("lights up again and again", "lighting up again and again", "light up again and again"),
        ("blinks on and off", "blinking on and off", "blink on and off"),
        ("pulses with light", "pulsing with light", "pulse with light"),
        ("keeps flashing", "flashing on and on", "keep flashing"), ("strobes", "strobing", "strobe"),
    ),
    "stay": (
        ("stays still", "staying still", "stay still"), ("stays still", "staying still", "stay still"),
        ("does not move", "not moving", "not move"), ("doesn't move", "not moving", "not move"),
        ("stands still", "standing still", "stand still"), ("stays in place", "staying in place", "stay in place"),
        ("rests", "resting", "rest"), ("remains motionless", "remaining motionless", "remain motionless"),
        ("sits still", "sitting still", "sit still"),
        ("rests on the floor", "resting on the floor", "rest on the floor"),
        ("stays where it is", "staying where it is", "stay where it is"),
        ("just sits there", "just sitting there", "just sit there"),
        ("keeps still", "keeping still", "keep still"),
    ),
}  # fmt: skip
SLIDE_VERBS = (
    ("slides", "sliding", "slide"), ("slides", "sliding", "slide"), ("slides", "sliding", "slide"),
    ("moves", "moving", "move"), ("moves", "moving", "move"), ("glides", "gliding", "glide"),
    ("travels", "traveling", "travel"),
    ("goes", "going", "go"), ("heads", "heading", "head"), ("shifts", "shifting", "shift"),
    ("travels", "travelling", "travel"),
)  # fmt: skip
# verbs of slides that tell the tempo, too
TEMPO_SLIDE_VERBS = {
    "slow": (
        ("creeps", "creeping", "creep"), ("crawls", "crawling", "crawl"),
        ("drifts lazily", "drifting lazily", "drift lazily"),
    ),
    "fast": (
        ("races", "racing", "race"), ("rushes", "rushing", "rush"), ("dashes", "dashing", "dash"),
        ("zooms", "zooming", "zoom"),
        ("shoots", "shooting", "shoot"), ("speeds", "speeding", "speed"),
    ),
}  # fmt: skip
DIRECTIONS = {
    side: (
        side, f"to the {side}", f"to the {side}", f"to the {side}", f"{side}ward", f"{side}wards", f"toward the {side}",
        f"towards the {side}", f"from {other} to {side}", f"from the {other} to the {side}", f"to the {side} side",
        f"to the {side} wall", f"toward the {side} wall", f"over to the {side}", f"across to the {side}",
        f"towards the {side}-hand side",
    )
    for side, other in (("left", "right"), ("right", "left"))
}  # fmt: skip
_ACROSS = (
    ("slides across", "sliding across", "slide across"), ("slides to a wall", "sliding to a wall", "slide to a wall"),
)  # fmt: skip
LOOSE_MOTIONS = {"left": _ACROSS, "right": _ACROSS}
SLIDES = ("left", "right")
ADVERBS = {
    "slow": ("slowly", "slowly", "slowly", "unhurriedly", "leisurely", "lazily"),
    "fast": ("quickly", "quickly", "quickly", "fast", "fast", "rapidly", "swiftly", "speedily"),
}
PACES = {
    "slow": ("at a slow pace", "at a slow tempo", "at low speed", "in a slow rhythm", "without any hurry"),
    "fast": ("at a fast pace", "at a fast tempo", "at high speed", "in a quick rhythm", "at a rapid rate"),
}
COUNTS = {  # of bounces and flashes
    "slow": ("once a second", "once per second", "one time per second", "every second", "every 1 second"),
    "fast": ("twice a second", "two times per second", "twice per second", "every half second", "every 0.5 seconds"),
}
TEMPO_SENTENCES = {
    "slow": ("the tempo is slow", "it is slow", "the movement is slow", "all of this is slow", "it takes its time"),
    "fast": ("the tempo is fast", "it is fast", "the movement is quick", "all of this is fast", "it is in a hurry"),
}
TEMPO_ADJECTIVES = {"slow": ("slow", "slow", "unhurried"), "fast": ("fast", "quick", "rapid")}
MOTION_ADJECTIVES = {
    "bounce": ("bouncing", "hopping", "jumping"),
    "flash": ("flashing", "blinking", "flickering"),
    "stay": ("still", "motionless", "stationary", "resting", "unmoving"),
}
