"""Published experiments as data: their cases, what their authors printed, what they claim, and how both fare here."""
