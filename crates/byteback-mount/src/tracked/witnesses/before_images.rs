//! The before-images as a witness: they keep old bytes before they change. They cannot fail a
//! change.

use crate::before_images::BeforeImages;
use crate::tracked::change::Change;
use crate::tracked::witness::Witness;

impl Witness for BeforeImages {
    fn before(&self, change: &Change<'_>) {
        if let Change::Content(content) = change
            && !content.ranges.is_empty()
        {
            self.before_content(content.node, content.fd, &content.ranges);
        }
    }
}
