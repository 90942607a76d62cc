"""Makes the tasks' environments known to Gymnasium, by name only: nothing of them is imported before it is used."""

import gymnasium

# id: where the environment lives, and the time limit of an episode in steps
IDS = {
    "cdpo/InvertedPendulum-v0": ("cdpo.tasks.physics:InvertedPendulum", 200),
    "cdpo/CartpoleSwingup-v0": ("cdpo.tasks.physics:CartpoleSwingup", 200),
    "cdpo/PendulumSwingup-v0": ("cdpo.tasks.pendulum:PendulumSwingup", 400),
    "cdpo/Pusher-v0": ("cdpo.tasks.physics:Pusher", 150),
    "cdpo/HalfCheetah-v0": ("cdpo.tasks.physics:HalfCheetah", 1000),
    "cdpo/LQR-v0": ("cdpo.tasks.lqr:LQR", 50),
}


def register() -> None:
    """Register what is not registered yet."""
    for name, (entry_point, horizon) in IDS.items():
        if name not in gymnasium.registry:
            gymnasium.register(name, entry_point=entry_point, max_episode_steps=horizon)


register()
