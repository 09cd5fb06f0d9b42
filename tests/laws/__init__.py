"""Laws that abstractions obey, whatever values they are given."""
