//! Real traffic.
