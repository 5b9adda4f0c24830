//! Taking everything of ours off the node.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use serde::Serialize;

use super::lock::Lock;
use super::run::ENDPOINTS;
use crate::bpf::{self, Datapath};
use crate::config::Config;
use crate::kernel::Observed;
use crate::netlink::Netlink;

/// What a clean-up removed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CleanUp {
    /// The objects, in the order in which they went.
    pub objects: Vec<String>,
}
