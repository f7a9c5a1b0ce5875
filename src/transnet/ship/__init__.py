"""Use a trained run elsewhere: export it, predict with it, serve it, share it."""
