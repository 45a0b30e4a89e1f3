"""What tests share: servers, stores, layers, damage, and savers driven by hand."""
