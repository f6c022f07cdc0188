"""Small recurrent networks, forward, backward and update fused into one call: see `settings` for the equations, `train` for the way in."""
