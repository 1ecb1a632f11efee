// Package client lets a Go program on the daemon's machine train with larder: it calls the control plane and reads
// batches as views of shared memory. It implements the local session (docs/protocol.md). The demo, the benchmarks and
// the tests of larder use it too.
//
// # Call sequence
//
// A session feeds one rank of one job:
//
//	conn, err := client.Dial(ctx, "")                        // the user's own daemon; it must run
//	defer conn.Close()
//	err = conn.Call(ctx, "RegisterJob", &larderv1.RegisterJobRequest{Spec: spec}, new(larderv1.RegisterJobResponse))
//	stream, err := conn.Attach(ctx, &larderv1.AttachRequest{Job: spec.GetName(), Rank: 0})
//	for epoch := stream.Info().GetNextEpoch(); epoch < epochs; epoch++ {
//		err = stream.StartEpoch(ctx, epoch)
//		for {
//			batch, err := stream.Next(ctx)                   // io.EOF: the epoch is complete
//			use(batch.Index(), batch.Label(), batch.Image)   // slices of the ring, valid until Release
//			batch.Release()                                  // the slot is the daemon's again
//		}
//	}
//	err = stream.Detach(ctx)                                 // without it the daemon keeps the rank for a lease
//
// After a cut or a restart of the daemon, open a new session, attach with the incarnation that was held
// (Info().GetIncarnation()), and call Continue instead of StartEpoch.
//
// # Ownership and concurrency
//
// A Conn owns its socket and is safe for concurrent use; Call may run beside a Stream. A Stream owns its mappings; one
// goroutine at a time calls StartEpoch, Continue, Next and Detach. A Batch belongs to the caller from Next until
// Release; its methods may be called from any goroutine. A ring has a few slots: a program that keeps all of them
// without a Release waits in Next without end. The package decides nothing and copies no sample.
//
// # Errors
//
// What a user can act on is an *Error with a stable Reason, which docs/errors.md lists; compare it with a plain string.
// Contexts that end are in the chain of the error: errors.Is(err, context.Canceled).
//
// # Names and versions
//
// The exported names need no internal package: requests and answers are messages of larder/proto/larder/v1, and Error
// stands for the module's own error type. The module is named larder, without a host, so that `go get` cannot fetch it
// yet: another module names a checkout in its go.mod (replace larder => ../larder). The package follows the version of
// the daemon; a session with a daemon of another ABI is refused by Dial.
//
// It does not start daemons, does not reconnect by itself, and has no DDP or resume logic: larder.Loader in Python
// does.
package client
