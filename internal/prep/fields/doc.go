// Package fields runs built-in ops on records: the image of a record, and the masks, boxes and keypoints that must move
// with it.
//
//	Fields op, ops + schema ─ Parse ─→ Ops ─ Run(record, key) ─→ record
//
// Each op draws once for a sample. Package prep runs it on the image and says what it did with the places of pixels (a
// list of moves); this package does the same with the other fields, as the kernels of torchvision.transforms.v2 for
// tv_tensors do it: masks by the nearest pixel (masks.go), boxes and keypoints by arithmetic in their own dtype
// (boxes.go). Ops on colours touch the image alone. Fields that are not named pass unchanged.
//
// Ops is immutable and safe for concurrent use; a Worker belongs to one goroutine. Records are read where they lie and
// never changed. Nothing in them is trusted but what package record has checked: sizes that do not fit are faults of
// reason SAMPLE_BAD that name the field.
package fields
