package grpcapi

import (
	"context"

	"github.com/forgeyard/forgeyard-node/cas/cacheapi"
)

// PutPacked is what a compressed upload comes to.
func PutPacked(ctx context.Context, c *cacheapi.Cache, id cacheapi.ID, b []byte) error {
	return (&Server{cache: c}).putPackedBytes(ctx, id, b)
}
