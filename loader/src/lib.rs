//! Towpath node agent.
