package digest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"ebb.dev/ebb/internal/egress"
)

// explain says in a text of ours why there is no digest. It goes into a condition, which the tenant
// reads: what a server answered that the image names, and where it stands, is not repeated, or the
// controller would read for a tenant what it cannot reach itself.
func explain(err error) string {
	var refused *transport.Error
	var unknown *net.DNSError
	switch {
	case errors.As(err, &refused):
		return fmt.Sprintf("the registry answered %d %s", refused.StatusCode, http.StatusText(refused.StatusCode))
	case errors.As(err, new(missingError)):
		return "the reference is not valid"
	case errors.Is(err, egress.ErrAddress):
		return "the registry's address, or one that it leads to, is one where no registry is asked"
	case errors.Is(err, errPlain):
		return errPlain.Error()
	case errors.Is(err, context.DeadlineExceeded):
		return "the registry did not answer in time"
	case errors.As(err, &unknown):
		return "the name of the registry has no address"
	}
	return "the registry cannot be asked"
}
