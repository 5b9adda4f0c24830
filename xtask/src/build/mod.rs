//! Products of cargo: executables, the plugin, the images.

pub(super) mod artifacts;
pub(super) mod image;
pub(super) mod plugin;
