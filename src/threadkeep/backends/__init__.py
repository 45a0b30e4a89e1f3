"""Where rows live: one protocol, several stores."""
