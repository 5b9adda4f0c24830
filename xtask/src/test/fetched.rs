//! What suites run beside test programs, and how those find it.

use std::path::PathBuf;

use anyhow::Result;

use super::Suite;
use crate::setup::{self, Kubernetes};

/// Something that is fetched or built for suites.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Item {
    ApiServer,
    Kubectl,
    Kubelet,
    KubeProxy,
    Runtimes,
    Image,
}

impl Item {
    /// The variable that names it to test programs.
    fn variable(self) -> &'static str {
        match self {
            Self::ApiServer => "TOWPATH_API_SERVER",
            Self::Kubectl => "TOWPATH_KUBECTL",
            Self::Kubelet => "TOWPATH_KUBELET",
            Self::KubeProxy => "TOWPATH_KUBE_PROXY",
            Self::Runtimes => setup::RUNTIMES,
            Self::Image => "TOWPATH_IMAGE",
        }
    }

    fn is_for(self, suite: Suite) -> bool {
        match self {
            Self::ApiServer | Self::Kubectl | Self::Kubelet | Self::Image => suite == Suite::Api,
            Self::KubeProxy => matches!(suite, Suite::Services | Suite::Api),
            Self::Runtimes => matches!(suite, Suite::Cri | Suite::Api),
        }
    }
}

/// How what is none of ours is found.
type Fetch = fn(&mut Kubernetes) -> Result<PathBuf>;
const FETCHED: [(Item, Fetch); 5] = [
    (Item::ApiServer, Kubernetes::api_server),
    (Item::Kubectl, Kubernetes::kubectl),
    (Item::Kubelet, Kubernetes::kubelet),
    (Item::KubeProxy, Kubernetes::kube_proxy),
    (Item::Runtimes, |_| setup::runtimes()),
];

/// Where everything is.
pub(super) struct Fetched(Vec<(Item, PathBuf)>);

impl Fetched {
    /// Finds, fetches or builds what suites need.
    pub(super) fn of(suites: &[Suite]) -> Result<Self> {
        let mut kubernetes = Kubernetes::default();
        let mut found = Vec::new();
        for (item, fetch) in FETCHED {
            if suites.iter().any(|suite| item.is_for(*suite)) {
                found.push((item, fetch(&mut kubernetes)?));
            }
        }
        Ok(Self(found))
    }

    /// Adds the agent's image, which is made of what is built for the tests.
    pub(super) fn add_image(&mut self, archive: PathBuf) {
        self.0.push((Item::Image, archive));
    }

    /// The variables of a suite.
    pub(super) fn of_suite(&self, suite: Suite) -> Vec<(&'static str, PathBuf)> {
        let of_suite = self.0.iter().filter(|(item, _)| item.is_for(suite));
        of_suite
            .map(|(item, place)| (item.variable(), place.clone()))
            .collect()
    }
}
