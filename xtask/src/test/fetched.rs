//! Programs and images that suites need, and the variables by which tests find them.

use std::path::PathBuf;

use anyhow::Result;

use super::Suite;
use crate::build::image;
use crate::setup::{self, Component};

/// Something that is fetched or built for suites.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Item {
    Components,
    Runtimes,
    Image,
    OperatorImage,
    Boto3,
}

impl Item {
    /// The variable that names it to test programs.
    fn variable(self) -> &'static str {
        match self {
            Self::Components => setup::COMPONENTS,
            Self::Runtimes => setup::RUNTIMES,
            Self::Image => image::VARIABLE,
            Self::OperatorImage => image::OPERATOR_VARIABLE,
            Self::Boto3 => setup::BOTO3,
        }
    }

    fn is_for(self, suite: Suite) -> bool {
        match self {
            Self::Components => !components_of(suite).is_empty(),
            Self::Runtimes => matches!(suite, Suite::Cluster | Suite::Cri),
            Self::Image | Self::OperatorImage => suite == Suite::Cluster,
            Self::Boto3 => suite == Suite::Cloud,
        }
    }
}

/// The components that a suite runs.
fn components_of(suite: Suite) -> &'static [Component] {
    match suite {
        Suite::Services | Suite::Api | Suite::Operator => {
            &[Component::Kubernetes, Component::Debian]
        }
        Suite::Cluster => &[Component::Kubernetes, Component::CoreDns, Component::Debian],
        Suite::Cri => &[Component::Cnitool],
        Suite::Unit
        | Suite::Cloud
        | Suite::Bpf
        | Suite::Netns
        | Suite::Masq
        | Suite::Vm
        | Suite::Attacks => &[],
    }
}

/// Where everything is.
pub(super) struct Fetched(Vec<(Item, PathBuf)>);

impl Fetched {
    /// Finds, fetches or builds what suites need.
    pub(super) fn of(suites: &[Suite]) -> Result<Self> {
        let mut found = Vec::new();
        let needs = |item: Item| suites.iter().any(|suite| item.is_for(*suite));
        if needs(Item::Components) {
            let mut wanted: Vec<Component> = Vec::new();
            for component in suites.iter().flat_map(|suite| components_of(*suite)) {
                if !wanted.contains(component) {
                    wanted.push(*component);
                }
            }
            found.push((Item::Components, setup::components(&wanted)?));
        }
        if needs(Item::Runtimes) {
            found.push((Item::Runtimes, setup::runtimes()?));
        }
        if needs(Item::Boto3) {
            found.push((Item::Boto3, setup::boto3()?));
        }
        Ok(Self(found))
    }

    /// Adds the images of agent and operator, which are made of what is built for the tests.
    pub(super) fn add_images(&mut self, agent: PathBuf, operator: PathBuf) {
        self.0.push((Item::Image, agent));
        self.0.push((Item::OperatorImage, operator));
    }

    /// The variables of a suite.
    pub(super) fn of_suite(&self, suite: Suite) -> Vec<(&'static str, PathBuf)> {
        let of_suite = self.0.iter().filter(|(item, _)| item.is_for(suite));
        of_suite
            .map(|(item, place)| (item.variable(), place.clone()))
            .collect()
    }
}
