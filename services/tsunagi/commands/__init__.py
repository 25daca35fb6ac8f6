"""What commands do besides calling one service: the top layer, which may import all others."""
