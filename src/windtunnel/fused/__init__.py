"""Small recurrent networks whose forward, backward and update run as one call.

`settings` states the equations, `train` trains one network, `many` trains several at once, and `module` is
the PyTorch module.
"""
