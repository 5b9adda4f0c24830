//! Elastic IP addresses: `AssociateAddress` and `DisassociateAddress`.

use super::{Cloud, Public};
use crate::answer::Answer;
use crate::call::Associate;
use crate::error::{Failure, Result};

impl Cloud {
    pub(super) fn associate(&mut self, associate: &Associate) -> Result<Answer> {
        let elastic = self.addresses.get(&associate.allocation).ok_or_else(|| {
            Failure::new(
                "InvalidAllocationID.NotFound",
                format!(
                    "The allocation ID '{}' does not exist",
                    associate.allocation
                ),
            )
        })?;
        let (ip, before) = (elastic.ip, elastic.association.clone());
        let id = self.target(associate)?;
        let eni = self.known(&id)?;
        let private = associate
            .private
            .or(eni.addresses.primary)
            .ok_or_else(|| Failure::value(format!("interface {id} has no private IPv4 address")))?;
        if !eni.addresses.has(private) {
            return Err(Failure::value(format!(
                "{private} is not assigned to interface {id}"
            )));
        }
        let here = before
            .as_ref()
            .is_some_and(|(_, of, address)| *of == id && *address == private);
        let occupied = eni.addresses.public.contains_key(&private) || before.is_some();
        if occupied && !here && !associate.reassociate {
            return Err(Failure::new(
                "Resource.AlreadyAssociated",
                format!("{ip} or {private} is already associated"),
            ));
        }
        let displaced = eni
            .addresses
            .public
            .get(&private)
            .map(|old| old.association.clone());
        if let Some((association, ..)) = before {
            self.release(&association);
        }
        if let Some(association) = displaced {
            self.release(&association);
        }
        let association = self.new_id("eipassoc");
        if let Some(elastic) = self.addresses.get_mut(&associate.allocation) {
            elastic.association = Some((association.clone(), id.clone(), private));
        }
        let public = Public {
            ip,
            allocation: associate.allocation.clone(),
            association: association.clone(),
        };
        self.edit(&id, |eni| {
            eni.addresses.public.insert(private, public);
        });
        Ok(Answer::Associated(association))
    }

    /// The interface that an association is for.
    fn target(&self, associate: &Associate) -> Result<String> {
        match (&associate.eni, &associate.instance) {
            (Some(_), Some(_)) => Err(Failure::combination(
                "InstanceId and NetworkInterfaceId exclude each other",
            )),
            (Some(eni), None) => Ok(eni.clone()),
            (None, Some(instance)) => {
                self.instance_or_failure(instance)?;
                self.primary_of(instance).ok_or_else(|| {
                    Failure::new("IncorrectInstanceState", format!("{instance} has ended"))
                })
            }
            (None, None) => Err(Failure::new(
                "MissingParameter",
                "Either InstanceId or NetworkInterfaceId is required",
            )),
        }
    }

    /// The primary interface of an instance.
    #[must_use]
    pub fn primary_of(&self, instance: &str) -> Option<String> {
        let ids = self.of_instance.get(instance)?;
        let mut enis = ids.iter().filter_map(|id| self.interface(id));
        let primary = enis.find(|eni| {
            let attachment = eni.attachment.as_ref();
            attachment.is_some_and(|found| found.index == 0 && found.card == 0)
        });
        primary.map(|eni| eni.id.clone())
    }

    pub(super) fn disassociate(&mut self, association: &str) -> Result<Answer> {
        if self.release(association) {
            return Ok(Answer::Done);
        }
        Err(Failure::new(
            "InvalidAssociationID.NotFound",
            format!("The association ID '{association}' does not exist"),
        ))
    }

    fn release(&mut self, association: &str) -> bool {
        let found = self
            .addresses
            .values_mut()
            .find(|elastic| matches!(&elastic.association, Some((id, ..)) if id == association));
        let Some((_, eni, private)) = found.and_then(|elastic| elastic.association.take()) else {
            return false;
        };
        self.edit(&eni, |eni| {
            eni.addresses.public.remove(&private);
        });
        true
    }
}
