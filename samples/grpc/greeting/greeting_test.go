package greeting

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/types/descriptorpb"
)

func TestTheGeneratedCodeIsThatOfTheProto(t *testing.T) {
	if _, err := exec.LookPath("protoc"); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("protoc is not installed: run `make tools`")
		}
		t.Skip("protoc is not installed: run `make tools`")
	}
	out := filepath.Join(t.TempDir(), "set")
	if text, err := exec.CommandContext(t.Context(), "protoc", "--descriptor_set_out="+out, "greeting.proto").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	text, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	var set descriptorpb.FileDescriptorSet
	if err := proto.Unmarshal(text, &set); err != nil || len(set.GetFile()) != 1 {
		t.Fatalf("%d files: %v", len(set.GetFile()), err)
	}
	if generated := protodesc.ToFileDescriptorProto(File_greeting_proto); !proto.Equal(generated, set.GetFile()[0]) {
		t.Errorf("greeting.pb.go has\n%v\nand greeting.proto\n%v\nRun generate.sh in this folder.", generated, set.GetFile()[0])
	}
}
