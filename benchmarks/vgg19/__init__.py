"""The weights of VGG19 at full size (548 MB) into three nets of other code."""
