//! The description of a cluster to make.

use std::path::PathBuf;

use anyhow::{Context as _, Result};

use crate::cloud::SiteSpec;
use crate::fabric::Spec;
use crate::fabric::layout::Addressing;
use crate::kubernetes::ProxyMode;

/// Names the archive of the agent's image.
const IMAGE_VARIABLE: &str = "TOWPATH_IMAGE";
/// Names the archive of the operator's image.
const OPERATOR_IMAGE_VARIABLE: &str = "TOWPATH_OPERATOR_IMAGE";

/// The description of a cluster to make.
#[derive(Clone, Debug)]
pub struct ClusterSpec {
    /// The number of worker nodes that it has.
    pub workers: u8,
    /// The rules that kube-proxy writes.
    pub proxy: ProxyMode,
    /// Layout of each node.
    pub fabric: Spec,
    /// A cloud whose instances the nodes are, with an operator. Without one a stand-in writes the ENIs
    /// that the fabric has.
    pub site: Option<SiteSpec>,
    /// Called with each step before it begins.
    pub progress: fn(&str),
}

impl ClusterSpec {
    /// Two nodes of two ENIs, each with three prefixes: room for 40 pods and their successors.
    #[must_use]
    pub fn new(proxy: ProxyMode) -> Self {
        Self {
            workers: 2,
            proxy,
            fabric: Spec {
                addressing: Addressing::SeveralPrefixes(3),
                ..Spec::default()
            },
            site: None,
            progress: |_| (),
        }
    }

    /// Two instances of a cloud, each with its primary ENI alone.
    #[must_use]
    pub fn in_cloud(proxy: ProxyMode, site: SiteSpec) -> Self {
        Self {
            site: Some(site),
            ..Self::new(proxy)
        }
    }
}

/// The archive of the agent's image.
pub(super) fn image() -> Result<PathBuf> {
    archive(IMAGE_VARIABLE)
}

/// The archive of the operator's image.
pub(super) fn operator_image() -> Result<PathBuf> {
    archive(OPERATOR_IMAGE_VARIABLE)
}

fn archive(variable: &str) -> Result<PathBuf> {
    let named = std::env::var_os(variable).map(PathBuf::from);
    named
        .with_context(|| format!("{variable} names no image: `cargo xtask test cluster` builds it"))
}
