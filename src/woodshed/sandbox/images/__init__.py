"""What a sandbox's root is made of: the host image, unpacked directories, layers of files."""
