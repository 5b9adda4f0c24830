//! Writes of objects: the status before the spec, one at a time.

use ipam::Time;
use kubernetes::node::marks;
use kubernetes::operation::patch;
use serde_json::Value;

use crate::input::{Moment, Standing, Written};
use crate::machine::plan::soonest;
use crate::machine::{Fleet, Patch, Pending};
use crate::member::Publication;
use crate::reads::GATHERED;
use crate::work::{About, Event, Part, Task, WorkId};

impl Fleet {
    /// Writes the changes that a node's object lacks. Returns the time of the node's next check.
    pub(in crate::machine) fn write(
        &mut self,
        name: &str,
        publication: Option<&Publication>,
        at: Moment,
    ) -> Option<Time> {
        let may_change = self.may_change(at.now);
        let leads = matches!(self.standing, Standing::Leading { .. });
        let member = self.nodes.members.get_mut(name)?;
        let line = member.reported.update(at);
        if line.is_new
            && may_change
            && let Some(first) = member.reported.obstacles.first()
        {
            self.works.record(Event {
                about: About::Node(name.to_owned()),
                reason: first.reason,
                text: first.text.clone(),
            });
        }
        if !may_change {
            // The lease can be renewed in time.
            let later = Some(at.now.after(GATHERED)).filter(|_| leads);
            return soonest(line.again, later);
        }
        if member.writes.is_busy() {
            return line.again;
        }
        let object = &member.object;
        let text = line.text.as_deref();
        let text = text.unwrap_or_else(|| patch::shown_report(object));
        let status = match publication {
            Some(publication) => {
                let marks = member.releases.marks(marks::has_agent(object));
                let shown = patch::Status {
                    enis: &publication.enis,
                    static_ip: publication.static_ip,
                    marks: &marks,
                    report: text,
                };
                patch::status(object, shown)
            }
            None => patch::report(object, text),
        };
        let status = status.filter(|body| !member.has_dropped(Part::Status, body, at.now));
        let pre_allocate = self.settings.pre_allocate;
        let spec = publication
            .filter(|_| status.is_none())
            .and_then(|it| patch::spec(object, &it.blocks, self.settings.compat, pre_allocate))
            .filter(|body| !member.has_dropped(Part::Spec, body, at.now));
        let status = status.map(|body| (Part::Status, body));
        let Some((part, body)) = status.or(spec.map(|body| (Part::Spec, body))) else {
            return soonest(line.again, self.write_plain(name, at));
        };
        if let Some(pause) = member.writes.pause(at.now) {
            return soonest(line.again, Some(pause));
        }
        self.send_patch(name, part, body, at.now);
        line.again
    }

    /// Sends the patch of an object, which has no other write in flight.
    pub(in crate::machine) fn send_patch(
        &mut self,
        name: &str,
        part: Part,
        body: Value,
        now: Time,
    ) {
        let pending = Pending::Patch(Patch {
            name: name.to_owned(),
            part,
            body: body.clone(),
        });
        let task = Task::Patch {
            name: name.to_owned(),
            part,
            body,
        };
        let id = self.works.open(pending, task, now);
        if let Some(member) = self.nodes.members.get_mut(name) {
            member.writes.begin(id);
        }
    }

    /// Handles the answer to a patch. It does not bring back an object that was deleted in between.
    pub(in crate::machine) fn patched(
        &mut self,
        patch: &Patch,
        id: WorkId,
        written: Written,
        at: Moment,
    ) {
        let Patch { name, part, body } = patch;
        let Some(object) = self.end_write(name, id, written, at) else {
            return;
        };
        let version = |object: &Value| object["metadata"]["resourceVersion"].clone();
        if version(&object) == version(body)
            && let Some(member) = self.nodes.members.get_mut(name)
        {
            member.drop_change(*part, body[part.key()].clone(), at.now);
        }
        let uid = object["metadata"]["uid"].as_str().unwrap_or_default();
        if self
            .nodes
            .members
            .get(name)
            .is_some_and(|it| it.document.meta.uid == uid)
        {
            self.set_object(object, at);
            if *part == Part::Metadata {
                self.touched(name);
            }
        }
    }

    /// Handles the answer to a deletion. The watch shows that the object is gone.
    pub(in crate::machine) fn deleted(
        &mut self,
        name: &str,
        id: WorkId,
        written: Written,
        at: Moment,
    ) {
        let _object = self.end_write(name, id, written, at);
    }

    /// Ends the write of an object. Returns the object that the answer has.
    fn end_write(&mut self, name: &str, id: WorkId, written: Written, at: Moment) -> Option<Value> {
        let member = self.nodes.members.get_mut(name)?;
        if !member.writes.end(id) {
            return None;
        }
        self.nodes.dirty.insert(name.to_owned());
        match written {
            Written::Done(object) => {
                member.writes.succeed();
                object.map(|it| *it)
            }
            Written::Conflict => {
                member.writes.conflict(at.now);
                None
            }
            Written::Gone => {
                let reason = "there is no such object".to_owned();
                member.writes.fail(reason, None, at.now);
                None
            }
            Written::Failed {
                reason,
                retry_after,
            } => {
                member.writes.fail(reason, retry_after, at.now);
                None
            }
        }
    }
}
