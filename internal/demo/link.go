package demo

import (
	"context"
	"os"

	"larder/client"
	larderv1 "larder/proto/larder/v1"
)

// What the demo needs of client, behind the interfaces of client.go and phase.go, so that their tests need no daemon.

type clientSession struct{ *client.Conn }

func dialSession(ctx context.Context, socket string) (session, error) {
	c, err := client.Dial(ctx, socket)
	if err != nil {
		return nil, err
	}
	return clientSession{c}, nil
}

func (s clientSession) register(ctx context.Context, spec *larderv1.JobSpec) error {
	return s.Call(ctx, "RegisterJob", &larderv1.RegisterJobRequest{Spec: spec}, new(larderv1.RegisterJobResponse))
}

func (s clientSession) attach(ctx context.Context, job string) (stream, error) {
	st, err := s.Attach(ctx, &larderv1.AttachRequest{Job: job, Pid: int32(os.Getpid())})
	if err != nil {
		return nil, err
	}
	return clientStream{st}, nil
}

type clientStream struct{ *client.Stream }

func (s clientStream) startEpoch(ctx context.Context, epoch uint32) error {
	return s.StartEpoch(ctx, epoch)
}

func (s clientStream) next(ctx context.Context) (batch, error) {
	b, err := s.Next(ctx)
	if err != nil {
		return nil, err
	}
	return clientBatch{b}, nil
}

func (s clientStream) detach(ctx context.Context) error { return s.Detach(ctx) }

type clientBatch struct{ *client.Batch }

func (b clientBatch) ids() []int64    { return b.Index() }
func (b clientBatch) labels() []int64 { return b.Label() }
func (b clientBatch) release()        { b.Release() }

func (b clientBatch) pixels(row int) []byte {
	pix, _, _, _ := b.Image(row)
	return pix
}

type clientMeter struct{ *client.Conn }

func dialMeter(ctx context.Context, socket string) (meter, error) {
	c, err := client.Dial(ctx, socket)
	if err != nil {
		return nil, err
	}
	return clientMeter{c}, nil
}

func (m clientMeter) stats(ctx context.Context) (*larderv1.Stats, error) {
	var r larderv1.GetStatsResponse
	if err := m.Call(ctx, "GetStats", new(larderv1.GetStatsRequest), &r); err != nil {
		return nil, err
	}
	return r.GetStats(), nil
}
