//! Changes that take time, and what they do to the world.

use ipnet::IpNet;
use jiff::{SignedDuration, Timestamp};

use super::{AttachState, Cloud, InstanceState};

/// A change that comes later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// An instance runs.
    Running(String),
    /// An instance has ended.
    Terminated(String),
    /// An interface is there for every call.
    Made(String),
    /// The device of an interface appears.
    Device { eni: String, attachment: String },
    /// An interface is attached.
    Attached { eni: String, attachment: String },
    /// An interface is free.
    Detached { eni: String, attachment: String },
}

/// A change of the world, which the cloud's host carries out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The device of an interface appears in an instance.
    Attached {
        /// The interface.
        eni: String,
        /// The instance.
        instance: String,
    },
    /// The device of an interface vanishes from an instance.
    Detached {
        /// The interface.
        eni: String,
        /// The instance.
        instance: String,
    },
    /// An interface may send and receive for more addresses.
    Assigned {
        /// The interface.
        eni: String,
        /// The addresses and prefixes.
        blocks: Vec<IpNet>,
    },
    /// An interface no longer may send and receive for addresses.
    Unassigned {
        /// The interface.
        eni: String,
        /// The addresses and prefixes.
        blocks: Vec<IpNet>,
    },
    /// An interface has other security groups.
    Regrouped {
        /// The interface.
        eni: String,
    },
    /// An instance runs.
    Running {
        /// The instance.
        instance: String,
    },
    /// An instance has ended.
    Terminated {
        /// The instance.
        instance: String,
    },
}

impl Cloud {
    /// Carries out the due changes. A time before the last one counts as the last one.
    pub fn advance(&mut self, now: Timestamp) {
        while let Some(((at, number), _)) = self.time.due.first_key_value() {
            let key = (*at, *number);
            if key.0 > now {
                break;
            }
            self.time.now = self.time.now.max(key.0);
            if let Some(due) = self.time.due.remove(&key) {
                self.happen(due);
            }
        }
        self.time.now = self.time.now.max(now);
    }

    /// The time of the next change that comes by itself.
    #[must_use]
    pub fn next_due(&self) -> Option<Timestamp> {
        self.time.due.first_key_value().map(|((at, _), _)| *at)
    }

    /// Takes the effects that were not taken yet, in their order.
    pub fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.time.effects)
    }

    pub(super) fn schedule(&mut self, delay: SignedDuration, due: Due) {
        self.counter += 1;
        let at = self.time.now.checked_add(delay).unwrap_or(Timestamp::MAX);
        self.time.due.insert((at, self.counter), due);
    }

    fn happen(&mut self, due: Due) {
        match due {
            Due::Running(id) => {
                let pending = self.instance(&id).map(|instance| instance.state);
                if pending == Some(InstanceState::Pending) {
                    self.set_state(&id, InstanceState::Running);
                    self.time.effects.push(Effect::Running { instance: id });
                }
            }
            Due::Terminated(id) => self.end(&id),
            Due::Made(eni) => self.edit(&eni, |eni| eni.is_pending = false),
            Due::Device { eni, attachment } => self.show_device(eni, attachment),
            Due::Attached { eni, attachment } => {
                if self.state_of(&eni, &attachment) == Some(AttachState::Attaching) {
                    self.edit(&eni, |eni| {
                        if let Some(attachment) = &mut eni.attachment {
                            attachment.state = AttachState::Attached;
                        }
                    });
                }
            }
            Due::Detached { eni, attachment } => {
                if self.state_of(&eni, &attachment) == Some(AttachState::Detaching) {
                    self.free(&eni);
                }
            }
        }
    }

    fn show_device(&mut self, eni: String, attachment: String) {
        if self.state_of(&eni, &attachment) != Some(AttachState::Attaching) {
            return;
        }
        let found = self.interface(&eni).and_then(|eni| eni.attachment.as_ref());
        if let Some(instance) = found.map(|attachment| attachment.instance.clone()) {
            let effect = Effect::Attached {
                eni: eni.clone(),
                instance,
            };
            self.time.effects.push(effect);
            let delay = self.settings.attached.draw(&mut self.random);
            self.schedule(delay, Due::Attached { eni, attachment });
        }
    }

    fn state_of(&self, eni: &str, attachment: &str) -> Option<AttachState> {
        let found = self.interface(eni)?.attachment.as_ref()?;
        (found.id == attachment).then_some(found.state)
    }

    /// Ends the attachment of an interface.
    fn free(&mut self, eni: &str) {
        let found = self.interface(eni).and_then(|eni| eni.attachment.as_ref());
        if let Some(instance) = found.map(|attachment| attachment.instance.clone())
            && let Some(list) = self.of_instance.get_mut(&instance)
        {
            list.retain(|id| id != eni);
        }
        self.edit(eni, |eni| eni.attachment = None);
    }

    fn end(&mut self, instance: &str) {
        if self.instance(instance).map(|found| found.state) != Some(InstanceState::ShuttingDown) {
            return;
        }
        for eni in self.of_instance.remove(instance).unwrap_or_default() {
            let attachment = self.interface(&eni).and_then(|eni| eni.attachment.clone());
            let Some(attachment) = attachment else {
                continue;
            };
            if attachment.state != AttachState::Detaching {
                self.time.effects.push(Effect::Detached {
                    eni: eni.clone(),
                    instance: instance.to_owned(),
                });
            }
            self.edit(&eni, |eni| eni.attachment = None);
            if attachment.delete_on_termination {
                self.remove(&eni);
            }
        }
        self.set_state(instance, InstanceState::Terminated);
        self.time.effects.push(Effect::Terminated {
            instance: instance.to_owned(),
        });
    }
}
