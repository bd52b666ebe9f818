package names

import (
	"fmt"

	"knative.dev/pkg/apis"

	"ebb.dev/ebb/wire"
)

// RecordHeader on a request asks for a record of it, unless the Service has RecordsNone.
const RecordHeader = wire.HeaderRecord

// Values of RecordsAnnotation.
const (
	RecordsNone         = wire.RecordsNone
	RecordsAsynchronous = wire.RecordsAsynchronous
	RecordsAll          = wire.RecordsAll
)

func (r *reader) records() string {
	switch text, ok := r.annotations[RecordsAnnotation]; {
	case !ok:
	case text == RecordsNone || text == RecordsAsynchronous || text == RecordsAll:
		return text
	default:
		r.fail(apis.ErrInvalidValue(text, RecordsAnnotation,
			fmt.Sprintf("must be %s, %s or %s", RecordsNone, RecordsAsynchronous, RecordsAll)))
	}
	return RecordsAsynchronous
}
