"""Python side of protrain: preparing token files, and the demo's model and text."""
