"""The commands of `tilescale`, a file a group; heavy modules are imported inside them."""
