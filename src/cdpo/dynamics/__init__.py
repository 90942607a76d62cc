"""What the agent believes of the world: an ensemble around a least-squares reference, and its calibration."""
