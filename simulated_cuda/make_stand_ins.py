#!/usr/bin/env python3
"""Writes stand-ins for the CUDA libraries that LibTorch imports. For each library it writes a C file, whose functions do nothing and
return success, and a version script for the linker.

    make_stand_ins.py TORCH_LIB_FOLDER OUT_FOLDER

The functions that a library must export are the undefined symbols of LibTorch's own libraries. All functions are weak: if this folder
has sources for a library, they override the generated functions.
"""
import glob
import os
import re
import subprocess
import sys

# Library: the version node of its symbols (None: no version), and a pattern of the names that are imported without a version.
LIBRARIES = {
    "libcudart.so.13": ("libcudart.so.13", None),
    "libcublas.so.13": ("libcublas.so.13", None),
    "libcublasLt.so.13": ("libcublasLt.so.13", None),
    "libcudnn.so.9": ("libcudnn.so.9", None),
    "libcusparse.so.12": ("libcusparse.so.12", None),
    "libcufft.so.12": ("libcufft.so.12", None),
    "libcurand.so.10": ("libcurand.so.10", None),
    "libcusolver.so.12": ("libcusolver.so.12", None),
    "libnvrtc.so.13": ("libnvrtc.so.13", None),
    "libcupti.so.13": ("libcupti.so.13", None),
    "libnvshmem_host.so.3": ("NVSHMEM", "nvshmem"),
    "libcusparseLt.so.0": (None, "cusparseLt"),
    "libcufile.so.0": (None, "cuFile"),
    "libnccl.so.2": (None, "nccl"),
    "libcuda.so.1": (None, "cu[A-Z](?!File)"),
}

# Functions that LibTorch does not import but looks up by name at run time.
LOOKED_UP = {
    "libcuda.so.1": """cuInit cuDriverGetVersion cuDeviceGet cuDeviceGetCount cuDeviceGetName cuDeviceGetAttribute cuDeviceTotalMem_v2
        cuDevicePrimaryCtxGetState cuDevicePrimaryCtxRetain cuDevicePrimaryCtxRelease_v2 cuCtxGetCurrent cuCtxSetCurrent cuCtxGetDevice cuCtxFromGreenCtx
        cuCtxPushCurrent_v2 cuCtxPopCurrent_v2 cuGetErrorString cuGetErrorName cuPointerGetAttribute cuModuleLoadData cuModuleLoadDataEx
        cuModuleGetFunction cuModuleUnload cuLaunchKernel cuLaunchKernelEx cuLaunchCooperativeKernel cuFuncGetAttribute cuFuncSetAttribute
        cuOccupancyMaxActiveBlocksPerMultiprocessor cuMemCreate cuMemMap cuMemUnmap cuMemRelease cuMemSetAccess cuMemAddressReserve
        cuMemAddressFree cuMemGetAllocationGranularity cuMemExportToShareableHandle cuMemImportFromShareableHandle cuMemsetD32Async
        cuMulticastCreate cuMulticastAddDevice cuMulticastBindMem cuMulticastUnbind cuStreamWriteValue32_v2 cuStreamWaitValue32_v2
        cuTensorMapEncodeTiled cuGetProcAddress_v2 cuDeviceGetUuid_v2 cuDeviceGetByPCIBusId cuDeviceGetPCIBusId cuLinkCreate_v2
        cuLinkAddData_v2 cuLinkComplete cuLinkDestroy""".split(),
}

# C statements for functions that must do more than return 0; a0, a1, … are the arguments.
BODIES = {
    "cublasSetStream_v2": "stream = (void*)a1; return 0;",
    "cublasGetVersion_v2": "*(int*)a1 = 130100; return 0;",
    "cublasGetStatusString": 'return (long)"stand-in of cuBLAS";',
    "cublasLtGetVersion": "return 130100;",
    "cublasLtGetCudartVersion": "return 13000;",
    "cublasLtMatmulAlgoGetHeuristic": "*(int*)a9 = 1; return 0;",
    "cublasLtMatmul": 'simulated_cuda_library_launch((void*)a15, "cublasLtMatmul"); return 0;',
    "cudnnGetVersion": "return 91900;",
    "cudnnGetCudartVersion": "return 13000;",
    "cudnnGetErrorString": 'return (long)"stand-in of cuDNN";',
    "cudnnGetProperty": "*(int*)a1 = a0 == 0 ? 9 : a0 == 1 ? 19 : 0; return 0;",
    # Larger than any buffer, so LibTorch passes the weights one by one.
    "cudnnGetRNNWeightSpaceSize": "*(long*)a2 = 1L << 60; return 0;",
    "cudnnBackendCreateDescriptor": "*(void**)a1 = object; return 0;",
    "nvrtcVersion": "*(int*)a0 = 13; *(int*)a1 = 0; return 0;",
    "nvrtcGetErrorString": 'return (long)"stand-in of NVRTC";',
    "nvrtcGetPTXSize": "*(long*)a1 = 1; return 0;",
    "nvrtcGetCUBINSize": "*(long*)a1 = 1; return 0;",
    "nvrtcGetProgramLogSize": "*(long*)a1 = 1; return 0;",
    "cuptiGetVersion": "*(int*)a0 = 130000; return 0;",
    "cuptiSubscribe": "*(void**)a0 = object; return 0;",
    "cuptiGetResultString": '*(const char**)a1 = "stand-in of CUPTI"; return 0;',
    "cuptiActivityGetNextRecord": "*(void**)a2 = 0; return 12;",
    "cuptiActivityGetNumDroppedRecords": "*(long*)a2 = 0; return 0;",
    "cusparseGetErrorString": 'return (long)"stand-in of cuSPARSE";',
    "nvshmem_malloc": "return 0;",
    "cuInit": "return 0;",
    "cuDriverGetVersion": "*(int*)a0 = 13000; return 0;",
    "cuDeviceGet": "*(int*)a0 = (int)a1; return 0;",
    "cuDeviceGetCount": "return cudaGetDeviceCount((int*)a0) == 0 ? 0 : (*(int*)a0 = 0);",
    "cuDeviceGetAttribute": "return cudaDeviceGetAttribute((int*)a0, (int)a1, (int)a2);",
    "cuDevicePrimaryCtxGetState": "if (a1) *(int*)a1 = 0; if (a2) *(int*)a2 = 1; return 0;",
    "cuDevicePrimaryCtxRetain": "*(void**)a0 = object; return 0;",
    "cuDevicePrimaryCtxRelease_v2": "return 0;",
    "cuCtxGetCurrent": "*(void**)a0 = object; return 0;",
    "cuCtxSetCurrent": "return 0;",
    "cuGetErrorString": '*(const char**)a1 = "operation not supported by the stand-in of the CUDA driver"; return 0;',
    "cuPointerGetAttribute": "if ((int)a1 == 1) *(void**)a0 = object; else *(long*)a0 = 0; return 0;",
    "cuModuleLoadData": "*(void**)a0 = object; return 0;",
    "cuModuleLoadDataEx": "*(void**)a0 = object; return 0;",
    "cuModuleGetFunction": "*(void**)a0 = object; return 0;",
    "cuModuleUnload": "return 0;",
    "cuFuncGetAttribute": "*(int*)a0 = 0; return 0;",
    "cuFuncSetAttribute": "return 0;",
    "cuOccupancyMaxActiveBlocksPerMultiprocessor": "*(int*)a0 = 2; return 0;",
    "cuLaunchKernel": 'simulated_cuda_library_launch((void*)a8, "cuLaunchKernel"); return 0;',
}

# Kernels of cuBLAS run on the stream that was last set on this thread.
BLAS_KERNEL = re.compile(r"cublas.*(gemm|gemv|dot|trsm|syrk|herk|getrf|getrs|geqrf|axpy|scal|ger|Gemm)")
# Functions of cuSPARSE that only manage objects. All others compute, or return the size of a workspace, and are called only for tensors of a
# sparse layout. They return 10, CUSPARSE_STATUS_NOT_SUPPORTED, if the call is refused.
SPARSE_ADMINISTRATION = re.compile(r"cusparse(Create|Destroy|Set|Get)")
ARGUMENTS = 16


def imported(folder):
    """Undefined symbols of LibTorch's libraries: a map from names to version nodes, or '' for an unversioned symbol."""
    found = {}
    for library in sorted(glob.glob(os.path.join(folder, "*.so*"))):
        output = subprocess.run(["nm", "-D", "--undefined-only", library], capture_output=True, text=True, check=False).stdout
        for line in output.splitlines():
            name, _, version = line.split()[-1].partition("@")
            found.setdefault(name, version)
    return found


def driver_functions(folder):
    """The driver's functions that LibTorch looks up on first use, as listed in its own header."""
    with open(os.path.join(folder, "..", "include", "c10", "cuda", "driver_api.h"), encoding="utf-8") as header:
        return set(re.findall(r"\b_\((cu\w+)", header.read()))


def body(library, name):
    if name in BODIES:
        return BODIES[name]
    if library == "libcudart.so.13":
        return f'return simulated_cuda_unsupported("{name}");'
    if library == "libcuda.so.1":
        # 801: CUDA_ERROR_NOT_SUPPORTED
        return f'simulated_cuda_unsupported("{name}"); return 801;'
    if library.startswith("libcublas.") and BLAS_KERNEL.match(name):
        return f'simulated_cuda_library_launch(stream, "{name}"); return 0;'
    if library.startswith("libcusparse.") and not SPARSE_ADMINISTRATION.match(name):
        return f'return simulated_cuda_library_computes("{name}") ? 10 : 0;'
    if "Create" in name:
        return "*(void**)a0 = object; return 0;"
    return "return 0;"


def source(library, names):
    arguments = ", ".join(f"long a{i}" for i in range(ARGUMENTS))
    used = " ".join(f"(void)a{i};" for i in range(ARGUMENTS))
    lines = [
        f"/* Stand-in for {library}, generated by make_stand_ins.py. */",
        "extern int simulated_cuda_unsupported(const char*);",
        "extern void simulated_cuda_library_launch(void*, const char*);",
        "extern int simulated_cuda_library_computes(const char*);",
        "extern int cudaGetDeviceCount(int*);" if library == "libcuda.so.1" else "",
        "extern int cudaDeviceGetAttribute(int*, int, int);" if library == "libcuda.so.1" else "",
        "static __attribute__((unused)) long object[512];  /* the target of all handles */",
        "static __attribute__((unused)) __thread void* stream;",
    ]
    for name in names:
        lines.append(f'__attribute__((weak, visibility("default"))) long {name}({arguments}) {{ {used} {body(library, name)} }}')
    return "\n".join(lines) + "\n"


def main():
    torch_folder, out = sys.argv[1:3]
    wanted = imported(torch_folder)
    for library, (node, prefix) in LIBRARIES.items():
        names = {n for n, v in wanted.items() if node and v == node}
        if prefix:
            names |= {n for n, v in wanted.items() if not v and re.match(prefix, n)}
        names |= set(LOOKED_UP.get(library, []))
        if library == "libcuda.so.1":
            names |= driver_functions(torch_folder)
        names = sorted(n for n in names if re.fullmatch(r"[A-Za-z_]\w*", n))
        if not names and library != "libcurand.so.10":  # LibTorch loads this library but calls none of its functions
            sys.exit(f"make_stand_ins.py: LibTorch in {torch_folder} imports no function from {library}. Is it the version that this project requires?")
        base = os.path.join(out, library.split(".so")[0])
        with open(base + ".c", "w", encoding="utf-8") as file:
            file.write(source(library, names))
        with open(base + ".map", "w", encoding="utf-8") as file:
            file.write((node or "") + " { global: *; };\n")


main()
