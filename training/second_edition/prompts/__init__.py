"""Plain English about the world: `compose.prompt` writes one clip's prompt and says what it states."""
