package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"google.golang.org/protobuf/types/known/structpb"

	"larder/client"
	larderv1 "larder/proto/larder/v1"
)

// A program registers a job, attaches to its only rank, and reads two epochs.
func Example() {
	socket, dataset, stop := exampleDaemon() // usually: the daemon of `larder serve` and a folder of images
	defer stop()
	if err := train(context.Background(), socket, dataset); err != nil {
		e := new(client.Error)
		if errors.As(err, &e) {
			fmt.Println(e.Reason, e.Message, e.Hint)
		}
		fmt.Println(err)
	}
	// Output:
	// epoch 0: 12 samples in 3 batches, each exactly once
	// epoch 1: 12 samples in 3 batches, each exactly once
}

func train(ctx context.Context, socket, dataset string) error {
	conn, err := client.Dial(ctx, socket)
	if err != nil {
		return err
	}
	defer conn.Close()

	size, err := structpb.NewStruct(map[string]any{"size": 8})
	if err != nil {
		return err
	}
	spec := &larderv1.JobSpec{
		Name: "example", Dataset: dataset, BatchSize: 5, Shuffle: true, Seed: 7, Epochs: 2,
		Transform: []*larderv1.Op{{Name: "RandomResizedCrop", Args: size}, {Name: "RandomHorizontalFlip"}},
	}
	if err := conn.Call(ctx, "RegisterJob", &larderv1.RegisterJobRequest{Spec: spec},
		new(larderv1.RegisterJobResponse)); err != nil {
		return err
	}
	stream, err := conn.Attach(ctx, &larderv1.AttachRequest{Job: spec.GetName(), Pid: int32(os.Getpid())})
	if err != nil {
		return err
	}
	for epoch := stream.Info().GetNextEpoch(); epoch < spec.GetEpochs(); epoch++ {
		if err := stream.StartEpoch(ctx, epoch); err != nil {
			return err
		}
		if err := readEpoch(ctx, stream, epoch); err != nil {
			return err
		}
	}
	return stream.Detach(ctx)
}

func readEpoch(ctx context.Context, stream *client.Stream, epoch uint32) error {
	seen, batches := map[int64]bool{}, 0
	for {
		batch, err := stream.Next(ctx)
		if errors.Is(err, io.EOF) {
			fmt.Printf("epoch %d: %d samples in %d batches, each exactly once\n", epoch, len(seen), batches)
			return nil
		}
		if err != nil {
			return err
		}
		batches++
		for row, id := range batch.Index() {
			pixels, height, width, channels := batch.Image(row)
			if seen[id] || height != 8 || width != 8 || len(pixels) != height*width*channels {
				return fmt.Errorf("sample %d of label %d has %d bytes", id, batch.Label()[row], len(pixels))
			}
			seen[id] = true
		}
		batch.Release()
	}
}
