//! The resources that AWS authorises each call on, by its reference "Actions, resources, and condition
//! keys for Amazon EC2".

use super::{Context, Question};
use crate::call::{Associate, Call, Change, Create};
use crate::cloud::Cloud;

impl Cloud {
    /// The questions of a call; all of them have to be allowed.
    pub(super) fn questions(&self, call: &Call) -> Vec<Question> {
        let action = call.action();
        match call {
            Call::Describe(_) => vec![self.question(action, "*".to_owned(), self.global())],
            Call::Create(create) => self.on_creation(action, create),
            Call::Attach(attach) => vec![
                self.on_interface(action, &attach.eni),
                self.on_instance(action, &attach.instance),
            ],
            Call::Detach(attachment) => {
                let of = self.interfaces().find_map(|eni| {
                    let found = eni.attachment.as_ref()?;
                    (found.id == *attachment).then(|| (eni.id.clone(), found.instance.clone()))
                });
                let (eni, instance) = of.unwrap_or(("*".to_owned(), "*".to_owned()));
                vec![
                    self.on_interface(action, &eni),
                    self.on_instance(action, &instance),
                ]
            }
            Call::Delete(eni) => vec![self.on_interface(action, eni)],
            Call::Modify(modify) => {
                let mut all = vec![self.on_interface(action, &modify.eni)];
                if let Change::Groups(groups) = &modify.change {
                    all.extend(groups.iter().map(|id| self.on_group(action, id)));
                }
                all
            }
            Call::Assign(assign) | Call::Unassign(assign) => {
                vec![self.on_interface(action, &assign.eni)]
            }
            Call::Tag { resources, tags } => {
                let tagged = |id: &String| {
                    let mut question = self.on_any(action, id);
                    question.context.request_tags(tags);
                    question
                };
                resources.iter().map(tagged).collect()
            }
            Call::Associate(associate) => self.on_association(action, associate),
            Call::Disassociate(association) => {
                let elastic = self.elastic_of(association);
                let (allocation, eni) = elastic.unwrap_or(("*".to_owned(), "*".to_owned()));
                vec![
                    self.on_address(action, &allocation),
                    self.on_interface(action, &eni),
                ]
            }
        }
    }

    fn on_creation(&self, action: &'static str, create: &Create) -> Vec<Question> {
        let mut context = self.global();
        context.request_tags(&create.tags);
        let new = self.arn("network-interface", "*");
        let mut all = vec![self.question(action, new.clone(), context.clone())];
        all.push(self.on_subnet(action, &create.subnet));
        all.extend(create.groups.iter().map(|id| self.on_group(action, id)));
        if !create.tags.is_empty() {
            context.set("ec2:CreateAction", action);
            all.push(self.question("CreateTags", new, context));
        }
        all
    }

    fn on_association(&self, action: &'static str, associate: &Associate) -> Vec<Question> {
        let mut all = vec![self.on_address(action, &associate.allocation)];
        let instance = associate.instance.iter();
        all.extend(instance.map(|id| self.on_instance(action, id)));
        let eni = associate.eni.clone();
        let primary = || self.primary_of(associate.instance.as_deref()?);
        let eni = eni.or_else(primary);
        all.extend(eni.map(|id| self.on_interface(action, &id)));
        all
    }

    fn question(&self, action: &'static str, resource: String, context: Context) -> Question {
        let mut context = context;
        context.set("aws:RequestedRegion", &self.settings().region);
        Question {
            action,
            resource,
            context,
        }
    }

    fn global(&self) -> Context {
        let mut context = Context::default();
        context.set("ec2:Region", &self.settings().region);
        context
    }

    fn arn(&self, kind: &str, id: &str) -> String {
        let settings = self.settings();
        format!(
            "arn:{}:ec2:{}:{}:{kind}/{id}",
            settings.partition, settings.region, settings.account
        )
    }

    /// The context of a resource: its tags and its VPC.
    fn of_resource(&self, id: &str, vpc: Option<&str>) -> Context {
        let mut context = self.global();
        if let Some(tags) = self.tags_of(id) {
            context.resource_tags(tags);
        }
        if let Some(vpc) = vpc {
            context.set("ec2:Vpc", self.arn("vpc", vpc));
        }
        context
    }

    fn on_interface(&self, action: &'static str, id: &str) -> Question {
        let eni = self.interface(id);
        let mut context = self.of_resource(id, eni.map(|eni| eni.placement.vpc.as_str()));
        if let Some(eni) = eni {
            context.set("ec2:Subnet", self.arn("subnet", &eni.placement.subnet));
            context.set("ec2:AvailabilityZone", &eni.placement.zone);
            context.set("ec2:NetworkInterfaceID", id);
        }
        self.question(action, self.arn("network-interface", id), context)
    }

    fn on_instance(&self, action: &'static str, id: &str) -> Question {
        let mut context = self.of_resource(id, None);
        if let Some(instance) = self.instance(id) {
            context.set("ec2:InstanceType", &instance.kind);
            context.set("ec2:AvailabilityZone", &instance.zone);
            context.set("ec2:InstanceID", id);
        }
        self.question(action, self.arn("instance", id), context)
    }

    fn on_subnet(&self, action: &'static str, id: &str) -> Question {
        let mut context = self.of_resource(id, self.vpc_of(id));
        context.set("ec2:SubnetID", id);
        self.question(action, self.arn("subnet", id), context)
    }

    fn on_group(&self, action: &'static str, id: &str) -> Question {
        let mut context = self.of_resource(id, self.vpc_of(id));
        context.set("ec2:SecurityGroupID", id);
        self.question(action, self.arn("security-group", id), context)
    }

    fn on_address(&self, action: &'static str, id: &str) -> Question {
        let mut context = self.of_resource(id, None);
        context.set("ec2:AllocationId", id);
        self.question(action, self.arn("elastic-ip", id), context)
    }

    fn on_any(&self, action: &'static str, id: &str) -> Question {
        match id.split('-').next() {
            Some("eni") => self.on_interface(action, id),
            Some("i") => self.on_instance(action, id),
            Some("subnet") => self.on_subnet(action, id),
            Some("sg") => self.on_group(action, id),
            Some("eipalloc") => self.on_address(action, id),
            Some("rtb") => {
                let context = self.of_resource(id, self.vpc_of(id));
                self.question(action, self.arn("route-table", id), context)
            }
            _ => {
                let context = self.of_resource(id, None);
                self.question(action, self.arn("vpc", id), context)
            }
        }
    }
}
