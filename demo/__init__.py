"""An agent on threadkeep that reads a folder: killed, resumed, forked and measured."""
