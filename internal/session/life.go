package session

import "context"

type lifeKey struct{}

// withLife returns a context of a CALL of the session that life ends with.
func withLife(ctx, life context.Context) context.Context {
	return context.WithValue(ctx, lifeKey{}, life)
}

// LifeFrom returns the context that ends with the session of a CALL; false for a request that came over gRPC, whose
// caller may be gone once it is answered.
func LifeFrom(ctx context.Context) (context.Context, bool) {
	life, ok := ctx.Value(lifeKey{}).(context.Context)
	return life, ok
}
