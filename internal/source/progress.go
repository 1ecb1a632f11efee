package source

import "context"

type progressKey struct{}

// WithProgress returns a context under which indexing calls f whenever more samples were found, with how many. f may be
// called from any goroutine. Samples that an index has already are not counted.
func WithProgress(ctx context.Context, f func(samples int)) context.Context {
	return context.WithValue(ctx, progressKey{}, f)
}

// progressOf is what WithProgress was given, or a function that does nothing.
func progressOf(ctx context.Context) func(samples int) {
	if f, ok := ctx.Value(progressKey{}).(func(int)); ok {
		return f
	}
	return func(int) {}
}
