"""Training recipes: Stable-Baselines3, supervised fine-tuning, expert iteration and GRPO."""
