"""Graphs and scripts that hypothesis draws, and what plays them on a saver.

`plan` is the description and how it is drawn, `values` what nodes make and edit, `build` turns a
plan into a graph, `play` carries out its turns, `journal` notes what every value was like while it
was saved, `disturb` lets other threads run in the middle of our code.
"""
