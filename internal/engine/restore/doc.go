// Package restore turns what the journal has of jobs into Restore events of the coordinator.
//
// A daemon restores its jobs before it serves. [Datasets] are the names that hold, [All] the order of the work, and
// [Job.Complete] the translation of one job:
//
//	Open   one job after the other: names of datasets may have changed from job to job
//	Read   beside each other: Job.Complete, in proportion to what was given out
//	Put    one after the other, in the order of their ids: the coordinator takes the event
//
// The journal names samples by their ids in the job's dataset, and the coordinator by objects. What a subset selected
// then is compared with what it selects now; a difference is an error, because what was given out could not be
// distinguished from what is left.
//
// The package neither opens a dataset nor reads a file: a Job gets functions for that.
package restore
