//! Containers without a runtime: namespaces that plugins are called for.

use std::sync::Mutex;

use anyhow::Result;
use testkit::fabric::Netns;

use crate::driver::Attachment;
use crate::scene::Scene;

/// Makes containers of distinct ids, and keeps their namespaces to use them again.
pub(crate) struct Containers {
    prefix: String,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    made: usize,
    free: Vec<Netns>,
}

/// A container. Its namespace goes with it, unless it is given back.
pub(crate) struct Container {
    pub(crate) attachment: Attachment,
    pub(crate) netns: Netns,
}

impl Containers {
    pub(crate) fn new(scene: &Scene) -> Self {
        Self {
            prefix: scene.fabric.cgroup(),
            state: Mutex::default(),
        }
    }

    /// A container that no plugin has seen.
    pub(crate) fn take(&self) -> Result<Container> {
        let (number, free) = {
            let mut state = self.state.lock().unwrap();
            state.made += 1;
            (state.made, state.free.pop())
        };
        let netns = match free {
            Some(netns) => netns,
            None => Netns::create(&format!("{}-c{number}", self.prefix))?,
        };
        let id = format!("c{number:05}");
        Ok(Container {
            attachment: Attachment::new(&id, &netns.path()),
            netns,
        })
    }

    /// Takes back the namespace of a container whose network is gone.
    pub(crate) fn give_back(&self, container: Container) {
        self.state.lock().unwrap().free.push(container.netns);
    }
}

impl Container {
    pub(crate) fn id(&self) -> &str {
        &self.attachment.id
    }
}
