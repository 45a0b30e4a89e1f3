"""Where threads lie that nobody reads: the cold store, an object store or a folder.

`cold` reaches it, `archives` says what lies there, `front` stands in front of a store and brings
back what is asked for, `archiving` has the steps that take a thread there.
"""
