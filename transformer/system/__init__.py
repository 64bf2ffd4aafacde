"""Where Headwise meets Python and the operating system: module lookup, terminals, private folders, its commands."""
