package page

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"regexp"
	"strings"
)

// files are the page's files by path, ready to be sent.
type files struct {
	byPath map[string]file
	// policy is the content security policy of all answers.
	policy string
}

type file struct {
	kind, tag    string
	plain, small []byte
}

const index = "index.html"

// importMap is the only inline script. The policy names it by its hash.
var importMap = regexp.MustCompile(`(?s)<script type="importmap">(.*?)</script>`)

// prepare reads the files. With a key, the page does not ask for a token of the cluster.
func prepare(assets fs.FS, withKey bool) (*files, error) {
	all := &files{byPath: map[string]file{}}
	err := fs.WalkDir(assets, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := fs.ReadFile(assets, name)
		if err != nil {
			return err
		}
		if name == index {
			found := importMap.FindSubmatch(text)
			if found == nil {
				return fmt.Errorf("%s has no import map", name)
			}
			all.policy = policy(found[1])
			if withKey {
				text = bytes.Replace(text, []byte(`data-login="token"`), []byte(`data-login="key"`), 1)
			}
		}
		one, err := newFile(name, text)
		all.byPath["/"+name] = one
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the page's files: %w", err)
	}
	all.byPath["/"] = all.byPath["/"+index]
	return all, nil
}

func policy(inline []byte) string {
	hash := sha256.Sum256(inline)
	return strings.Join([]string{"default-src 'none'", "script-src 'self' 'sha256-" + base64.StdEncoding.EncodeToString(hash[:]) + "'",
		"style-src 'self'", "img-src 'self'", "connect-src 'self'", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"}, "; ")
}

func newFile(name string, text []byte) (file, error) {
	kind := mime.TypeByExtension(path.Ext(name))
	if strings.HasSuffix(name, ".js") || strings.HasSuffix(name, ".mjs") {
		kind = "text/javascript; charset=utf-8" // not every machine's list has .mjs
	}
	var packed bytes.Buffer
	zip, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err != nil {
		return file{}, err
	}
	if _, err := zip.Write(text); err != nil {
		return file{}, err
	}
	if err := zip.Close(); err != nil {
		return file{}, err
	}
	hash := sha256.Sum256(text)
	return file{kind: kind, tag: `"` + hex.EncodeToString(hash[:12]) + `"`, plain: text, small: packed.Bytes()}, nil
}

// ServeHTTP implements http.Handler. A browser asks each time whether a file has changed, so it
// never mixes those of two versions.
func (f *files) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	one, ok := f.byPath[r.URL.Path]
	if !ok {
		http.NotFound(w, r)
		return
	}
	h := w.Header()
	h.Set("Cache-Control", "no-cache")
	h.Set("ETag", one.tag)
	h.Set("Vary", "Accept-Encoding")
	if r.Header.Get("If-None-Match") == one.tag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	h.Set("Content-Type", one.kind)
	text := one.plain
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") && len(one.small) < len(text) {
		h.Set("Content-Encoding", "gzip")
		text = one.small
	}
	h.Set("Content-Length", fmt.Sprint(len(text)))
	if r.Method == http.MethodGet {
		_, _ = w.Write(text)
	}
}
