//! `AttachNetworkInterface` and `DetachNetworkInterface`.

use super::due::{Due, Effect};
use super::{AttachState, Attachment, Cloud, Eni, Instance, InstanceState};
use crate::answer::Answer;
use crate::call::Attach;
use crate::error::{Failure, Result};
use crate::family::Family;
use crate::settings::limits::Limits;
use crate::space;

impl Cloud {
    pub(super) fn attach(&mut self, attach: &Attach) -> Result<Answer> {
        let eni = self.known(&attach.eni)?;
        let instance = self.instance_or_failure(&attach.instance)?;
        check_states(eni, instance)?;
        let limits = instance
            .limits()
            .ok_or_else(|| Failure::new("InternalError", "the instance type is gone"))?;
        self.check_place(attach, instance, limits)?;
        check_slots(eni, limits)?;
        let id = self.new_id("eni-attach");
        let attachment = Attachment {
            id: id.clone(),
            instance: attach.instance.clone(),
            card: attach.card,
            index: attach.index,
            state: AttachState::Attaching,
            since: self.time.now,
            delete_on_termination: false,
        };
        self.edit(&attach.eni, |eni| eni.attachment = Some(attachment));
        self.of_instance
            .entry(attach.instance.clone())
            .or_default()
            .push(attach.eni.clone());
        let delay = self.settings.attach.draw(&mut self.random);
        self.schedule(
            delay,
            Due::Device {
                eni: attach.eni.clone(),
                attachment: id.clone(),
            },
        );
        Ok(Answer::Attached {
            attachment: id,
            card: attach.card,
        })
    }

    /// Attachments of an instance, whatever their state.
    fn attachments(&self, instance: &str) -> impl Iterator<Item = &Attachment> {
        let ids = self.of_instance.get(instance).into_iter().flatten();
        ids.filter_map(|id| self.interface(id)?.attachment.as_ref())
    }

    fn check_place(&self, attach: &Attach, instance: &Instance, limits: &Limits) -> Result<()> {
        let id = &attach.instance;
        if attach.card >= limits.cards {
            return Err(Failure::value(format!(
                "NetworkCardIndex {} exceeds the network cards of {}",
                attach.card, limits.name
            )));
        }
        let on_card = || {
            self.attachments(id)
                .filter(|other| other.card == attach.card)
        };
        let most = instance.interface_limit.unwrap_or(limits.interfaces);
        if on_card().count() >= usize::from(most) {
            return Err(Failure::new(
                "AttachmentLimitExceeded",
                format!(
                    "Interface count exceeds the limit {most} for {}",
                    limits.name
                ),
            ));
        }
        if on_card().any(|other| other.index == attach.index) {
            return Err(Failure::value(format!(
                "Instance '{id}' already has an interface attached at device index '{}'.",
                attach.index
            )));
        }
        Ok(())
    }

    pub(super) fn detach(&mut self, id: &str) -> Result<Answer> {
        let found = self.interfaces().find_map(|eni| {
            let attachment = eni.attachment.as_ref().filter(|found| found.id == id)?;
            Some((eni.id.clone(), attachment.clone()))
        });
        let (eni, attachment) = found.ok_or_else(|| {
            Failure::new(
                "InvalidAttachmentID.NotFound",
                format!("The attachment ID '{id}' does not exist"),
            )
        })?;
        if attachment.index == 0 {
            return Err(Failure::new(
                "OperationNotPermitted",
                "The network interface at device index 0 cannot be detached.",
            ));
        }
        if attachment.state == AttachState::Detaching {
            return Err(Failure::new(
                "IncorrectState",
                format!("The attachment '{id}' is detaching already"),
            ));
        }
        self.edit(&eni, |eni| {
            if let Some(attachment) = &mut eni.attachment {
                attachment.state = AttachState::Detaching;
            }
        });
        self.time.effects.push(Effect::Detached {
            eni: eni.clone(),
            instance: attachment.instance,
        });
        let delay = self.settings.detach.draw(&mut self.random);
        self.schedule(
            delay,
            Due::Detached {
                eni,
                attachment: id.to_owned(),
            },
        );
        Ok(Answer::Done)
    }
}

fn check_states(eni: &Eni, instance: &Instance) -> Result<()> {
    if eni.attachment.is_some() {
        return Err(Failure::value(format!(
            "Interface '{}' is currently in use.",
            eni.id
        )));
    }
    match instance.state {
        InstanceState::Running | InstanceState::Stopped => {}
        InstanceState::Pending | InstanceState::ShuttingDown | InstanceState::Terminated => {
            return Err(Failure::new(
                "IncorrectState",
                format!("Instance '{}' is not 'running' or 'stopped'.", instance.id),
            ));
        }
    }
    if eni.placement.zone != instance.zone {
        return Err(Failure::combination(format!(
            "interface {} and instance {} are not in one availability zone",
            eni.id, instance.id
        )));
    }
    Ok(())
}

fn check_slots(eni: &Eni, limits: &Limits) -> Result<()> {
    for (family, most) in [(Family::V4, limits.ipv4), (Family::V6, limits.ipv6)] {
        check_count(eni.addresses.slots(family), most, limits)?;
        let mut blocks = eni.addresses.of(family);
        if !limits.has_prefixes() && blocks.any(|net| !space::is_single(net)) {
            return Err(no_prefixes(limits));
        }
    }
    Ok(())
}

/// Refuses more slots than an interface has.
pub(super) fn check_count(slots: usize, most: usize, limits: &Limits) -> Result<()> {
    if slots <= most {
        return Ok(());
    }
    Err(Failure::new(
        "PrivateIpAddressLimitExceeded",
        format!(
            "Number of private addresses will exceed limit {most} of {}",
            limits.name
        ),
    ))
}

/// The refusal of prefixes on an instance that cannot have them.
pub(super) fn no_prefixes(limits: &Limits) -> Failure {
    Failure::value(format!("{} does not support prefixes", limits.name))
}
