package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"ebb.dev/ebb/test/internal/result"
)

// audit reads the writes of Ebb's service accounts from the API server's audit log. The cluster's
// audit policy must log each such write once; the policy of `make up` does.
type audit struct{ file *os.File }

// openAudit opens the log at its end. Without a path it counts nothing.
func openAudit(path string) (*audit, error) {
	if path == "" {
		return nil, nil
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open the audit log: %w", err)
	}
	_, err = file.Seek(0, io.SeekEnd)
	return &audit{file}, err
}

// writes counts the writes in a namespace that were logged since the last call, by account, verb,
// resource and status code.
func (a *audit) writes(namespace string) (map[string]int, error) {
	counts := map[string]int{}
	if a == nil {
		return counts, nil
	}
	lines := bufio.NewReader(a.file)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			_, err := a.file.Seek(-int64(len(line)), io.SeekCurrent) // the rest of a partial line is read by the next call
			return counts, err
		} else if err != nil {
			return nil, fmt.Errorf("read the audit log: %w", err)
		}
		var event struct {
			Verb string `json:"verb"`
			User struct {
				Username string `json:"username"`
			} `json:"user"`
			Object struct {
				Resource, Namespace, Subresource string
			} `json:"objectRef"`
			Answer struct {
				Code int `json:"code"`
			} `json:"responseStatus"`
		}
		if err := json.Unmarshal(line, &event); err != nil {
			return nil, fmt.Errorf("the audit log has the line %.200q: %w", line, err)
		}
		if event.Object.Namespace != namespace {
			continue
		}
		resource := event.Object.Resource
		if event.Object.Subresource != "" {
			resource += "/" + event.Object.Subresource
		}
		account := event.User.Username[strings.LastIndex(event.User.Username, ":")+1:]
		counts[fmt.Sprintf("%s %s %s %d", account, event.Verb, resource, event.Answer.Code)]++
	}
}

// count prints what was written since the last call and returns the number of writes for each of n
// services.
func (b *bench) count(when string, n int) (float64, error) {
	counts, err := b.audit.writes(b.namespace)
	if err != nil {
		return 0, err
	}
	all := 0
	for _, what := range slices.Sorted(maps.Keys(counts)) {
		all += counts[what]
		if err := b.out.Line(result.Fields{"when": when, "write": what, "per_service": float64(counts[what]) / float64(n)}); err != nil {
			return 0, err
		}
	}
	return float64(all) / float64(n), nil
}
