//! `ModifyNetworkInterfaceAttribute` and `CreateTags`.

use std::sync::Arc;

use super::create::MOST_TAGS;
use super::{Cloud, Effect, Instance};
use crate::answer::Answer;
use crate::call::{Change, Modify};
use crate::error::{Failure, Result};
use crate::world::Tags;

impl Cloud {
    pub(super) fn modify(&mut self, modify: &Modify) -> Result<Answer> {
        let eni = self.known(&modify.eni)?;
        match &modify.change {
            Change::Groups(groups) => {
                if groups.is_empty() {
                    return Err(Failure::value("an interface needs a security group"));
                }
                let groups = self.checked_groups(&eni.placement.subnet, groups)?;
                self.edit(&modify.eni, |eni| eni.groups = groups);
                let eni = modify.eni.clone();
                self.time.effects.push(Effect::Regrouped { eni });
            }
            Change::Description(text) => {
                self.edit(&modify.eni, |eni| eni.description.clone_from(text));
            }
            Change::SourceDestCheck(value) => {
                self.edit(&modify.eni, |eni| eni.source_dest_check = *value);
            }
            Change::DeleteOnTermination { attachment, value } => {
                let of = eni.attachment.as_ref().map(|found| &found.id);
                if of != Some(attachment) {
                    return Err(Failure::new(
                        "InvalidAttachmentID.NotFound",
                        format!("The attachment ID '{attachment}' does not exist"),
                    ));
                }
                self.edit(&modify.eni, |eni| {
                    if let Some(attachment) = &mut eni.attachment {
                        attachment.delete_on_termination = *value;
                    }
                });
            }
        }
        Ok(Answer::Done)
    }

    pub(super) fn tag(&mut self, resources: &[String], tags: &Tags) -> Result<Answer> {
        if let Some(key) = tags.keys().find(|key| key.starts_with("aws:")) {
            return Err(Failure::value(format!(
                "{key}: tag keys begin not with aws:"
            )));
        }
        for id in resources {
            let mut all = self
                .tags_of(id)
                .cloned()
                .ok_or_else(|| Failure::new("InvalidID", format!("The ID '{id}' is not valid")))?;
            all.extend(tags.clone());
            if all.len() > MOST_TAGS {
                return Err(Failure::new(
                    "TagLimitExceeded",
                    format!("{id} would have more than {MOST_TAGS} tags"),
                ));
            }
        }
        for id in resources {
            self.add_tags(id, tags);
        }
        Ok(Answer::Done)
    }

    /// The tags of a resource.
    #[must_use]
    pub fn tags_of(&self, id: &str) -> Option<&Tags> {
        let eni = self.interface(id).map(|eni| &eni.tags);
        let instance = || self.instance(id).map(|instance| &instance.tags);
        eni.or_else(instance)
            .or_else(|| self.network.subnets.get(id).map(|subnet| &subnet.spec.tags))
            .or_else(|| self.network.groups.get(id).map(|group| &group.tags))
            .or_else(|| self.network.vpcs.get(id).map(|vpc| &vpc.tags))
            .or_else(|| self.network.tables.get(id).map(|table| &table.tags))
            .or_else(|| self.addresses.get(id).map(|elastic| &elastic.tags))
    }

    fn add_tags(&mut self, id: &str, tags: &Tags) {
        let (now, kept) = (self.time.now, self.kept());
        self.edit(id, |eni| eni.tags.extend(tags.clone()));
        if let Some(past) = self.instances.get_mut(id)
            && let Some(instance) = past.latest()
        {
            let mut instance = Instance::clone(instance);
            instance.tags.extend(tags.clone());
            past.set(now, Some(Arc::new(instance)), kept);
        }
        let subnet = self
            .network
            .subnets
            .get_mut(id)
            .map(|subnet| &mut subnet.spec.tags);
        let group = self.network.groups.get_mut(id).map(|group| &mut group.tags);
        let vpc = self.network.vpcs.get_mut(id).map(|vpc| &mut vpc.tags);
        let table = self.network.tables.get_mut(id).map(|table| &mut table.tags);
        let elastic = self.addresses.get_mut(id).map(|elastic| &mut elastic.tags);
        for found in [subnet, group, vpc, table, elastic].into_iter().flatten() {
            found.extend(tags.clone());
        }
    }
}
