package coordinator

import (
	"context"
	"errors"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
)

// GetBlob streams a file of the blob store from an offset. It verifies the
// digest while it sends: a damaged file ends with Corrupt, is moved aside, and
// has to be uploaded again.
func (s *nodeService) GetBlob(ctx context.Context, req *connect.Request[droverv1.GetBlobRequest], stream *connect.ServerStream[droverv1.BlobChunk]) error {
	if id := caller(ctx); id.kind != kindLocal && id.kind != kindNode {
		return fault.New(fault.Denied, "%s is not a node", id.displayName())
	}
	if req.Msg.GetOffset() < 0 {
		return fault.New(fault.Invalid, "offset %d in %s: want one from 0 on", req.Msg.GetOffset(), req.Msg.GetDigest())
	}
	digest := req.Msg.GetDigest()
	if err := s.core.peers.keeper().ensure(ctx, digest); err != nil {
		return err
	}
	err := s.core.blobs.Send(digest, req.Msg.GetOffset(), make([]byte, blobChunk), func(part []byte) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		return stream.Send(&droverv1.BlobChunk{Data: part})
	})
	if errors.Is(err, fault.Corrupt) && s.core.files.replaceDamaged(ctx, digest, err) {
		return fault.New(fault.Unavailable, "%s was damaged, and was fetched again from another coordinator: ask for it again", digest)
	}
	return err
}
