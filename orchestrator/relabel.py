"""Which of interchangeable hosts takes which place of a plan, so that as many live links as possible stay. Pure."""
